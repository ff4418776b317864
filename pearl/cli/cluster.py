"""`pearl calibrate --on ray`: the nodes of a cluster and the links between them."""

from __future__ import annotations

import sys
from dataclasses import asdict

from pearl.cli.application import Result
from pearl.cli.text import calibration_text, links_text
from pearl.cluster import discovery, links
from pearl_estimators.host.calibration_file import path


def calibrate_nodes(seconds: float, limit_s: float | None) -> Result:
    """Calibrate every node and measure the links."""
    print(f"measuring every node, about {seconds:.0f} s each", file=sys.stderr, flush=True)
    hosts = discovery.calibrate(seconds, limit_s)
    print("measuring the links between them", file=sys.stderr, flush=True)
    measured = links.measure()
    texts = [calibration_text(each, f"the cache of {host}") for host, each in hosts.items()]
    texts.append(links_text(measured, str(links.path())))
    value = {
        **next(iter(hosts.values())).to_json(),
        "path": str(path()),
        "hosts": {host: each.to_json() for host, each in hosts.items()},
        "links": [asdict(each) for each in measured],
    }
    return Result("\n\n".join(texts), value)
