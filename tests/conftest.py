"""Signals as a terminal gives them, also where the tests were started by `nohup` or a shell's `&`,
which leave some ignored: a run leaves ignored signals ignored, and the tests send signals."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
