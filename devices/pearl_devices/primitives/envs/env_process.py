"""Environments in separate processes, so that they wait in parallel.

One server process has imported gymnasium, has one thread, and forks a process for each environment.
So environments share no state and no interpreter lock, and each computes the same as alone. Threads
need no messages, but guarantee neither. gymnasium's AsyncVectorEnv is not suitable: all its
processes end if one fails, and it does not name an environment without an answer.

A process ends when its connection is closed, also by the death of this process. The server kills
the processes that remain after GRACE_S, and all that they have started.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from pearl_devices import masks
from pearl_devices.base import UnsupportedError
from pearl_devices.primitives.envs import border
from pearl_devices.system import host_system

GRACE_S = 1.0
"""Seconds that an environment has to close itself."""

MODULE = "pearl_devices.primitives.envs.env_process"
THREADS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB")


class Home:
    """State that the environments of one server process share; the server ends with the last
    one."""


class EnvProcess:
    """An environment in another process, with gymnasium's methods. Of the infos, a reset only tells
    whether there is an action mask.

    After `begin(name)`, the method of that name returns the answer.
    """

    def __init__(self, wire: Connection) -> None:
        self._wire, self._due, self._sound = wire, list[str](), True
        self.pid, self.home, self._masked = 0, Home(), False
        self.observation_space: Any = None
        self.action_space: Any = None

    def wait_made(self) -> None:
        """Wait until the environment is made.

        Raises:
            UnsupportedError: it cannot be made.
        """
        self.pid, self.observation_space, self.action_space, self._masked = self._answer("make")

    def has_wrapper_attr(self, name: str) -> bool:
        """Return whether the environment has the method that gives its action mask."""
        return name == masks.METHOD and self._masked

    def begin(self, name: str, *given: Any) -> None:
        """Send a request; do not wait for its answer."""
        self._due.append(name)
        with suppress(ConnectionError):  # the process has ended; reading the answer reports it
            self._wire.send((name, given))

    def _answer(self, name: str, *given: Any) -> Any:
        if name not in self._due:
            self.begin(name, *given)
        self._due.remove(name)
        self._sound = False  # until a whole answer has been read
        try:
            failed, found = self._wire.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError("its process has ended") from None
        self._sound = True
        if failed:
            raise found
        return found

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        seen, info = self._answer("reset", seed)
        return seen, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return (*self._answer("step", action), {})

    def generator_state(self) -> Any:
        """Return the state of the generator, like `gym_resume.generator_state`."""
        return self._answer("generator_state")

    def replay(self, origin: Any, actions: Sequence[Any]) -> Any:
        """Return the observation after a reset from `origin` and these actions."""
        return self._answer("replay", origin, actions)

    def close(self) -> None:
        """Let the process end itself, or kill it if a request is running."""
        if self._sound and not self._due:
            self.begin("close")
            with suppress(OSError):
                self._wire.poll(GRACE_S)
        if self.pid:
            host_system.kill(self.pid)  # a zombie keeps its number
        self._wire.close()


def start_environments(
    program: str, args: dict[str, Any], envs: int, stack: int, seeds: Sequence[int]
) -> list[EnvProcess]:
    """Start `envs` environments, each in a process. seeds: of the global generators of each.

    Raises:
        UnsupportedError: one cannot be made.
    """
    pairs = [socket.socketpair() for _ in range(envs)]
    theirs = [there.fileno() for _, there in pairs]
    environment = os.environ | {f"{library}_NUM_THREADS": "1" for library in THREADS}
    environment["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    parents = [
        subprocess.Popen(
            [sys.executable, "-m", MODULE, *map(str, some)],
            stdin=subprocess.PIPE,
            pass_fds=some,
            env=environment,
            start_new_session=True,  # only this process gets the terminal's Ctrl-C
        )
        for some in ([theirs] if host_system.FORKS else [[handle] for handle in theirs])
    ]
    for _, there in pairs:
        there.close()
    wires = [Connection(here.detach()) for here, _ in pairs]
    found = [EnvProcess(wire) for wire in wires]
    home = Home()
    ending = weakref.finalize(home, _end, parents, wires)
    for env, seed in zip(found, seeds, strict=True):
        env.home = home
        env.begin("make", program, args, stack, seed)
    try:
        for env in found:
            env.wait_made()
    except BaseException as error:
        ending()
        if isinstance(error, RuntimeError):
            why = f"environment {program!r} with arguments {args} cannot be made: {error}"
            raise UnsupportedError(why) from error
        raise
    return found


def _end(parents: Sequence[subprocess.Popen[bytes]], wires: Sequence[Connection]) -> None:
    for wire in wires:
        wire.close()
    for parent in parents:
        assert parent.stdin is not None
        with suppress(OSError):
            parent.stdin.close()
    for parent in parents:
        parent.wait()


# ---------------------------------------------------------------------- in the other processes


def _serve(wire: Connection) -> None:
    """Serve requests for an environment until the connection is closed."""
    from pearl_devices.primitives.envs.global_generators import seed_generators
    from pearl_devices.primitives.envs.gym_make import make
    from pearl_devices.primitives.envs.gym_resume import generator_state, replay_actions

    env: Any = None
    while True:
        try:
            name, given = wire.recv()
        except (EOFError, OSError):
            break
        found: Any = None
        try:
            if name == "make":
                program, args, stack, seed = given
                seed_generators(seed)
                made = make(program, args, 1, stack)
                if not isinstance(made, list):
                    raise UnsupportedError(
                        f"environment {program!r} is a vector environment, which has processes of "
                        "its own or needs none; leave the variant processes out"
                    )
                env = made[0]
                offers = masks.has_method(env)
                found = os.getpid(), env.observation_space, env.action_space, offers
            elif name == "reset":
                seen, info = border.reset(env, seed=given[0])
                found = seen, {masks.KEY: None} if masks.KEY in info else {}
            elif name == "step":
                found = border.read_step(env.step(given[0]))
            elif name == "generator_state":
                found = generator_state(env)
            elif name == "replay":
                found = replay_actions(env, *given)
            else:
                env.close()
            _reply(wire, False, found)
        except OSError:
            raise
        except BaseException as error:  # the environment's code may raise anything
            _reply(wire, True, _plain(error))
    if env is not None:
        env.close()


def _plain(error: BaseException) -> Exception:
    """Return an exception that can be pickled: the error itself, or one with its text."""
    if not isinstance(error, Exception):  # it would end the process that reads it
        return RuntimeError(f"{type(error).__name__}: {error}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _reply(wire: Connection, failed: bool, found: Any) -> None:
    try:
        wire.send((failed, found))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        what = (
            f"{type(found).__name__}: {found}"
            if failed
            else f"its result cannot be pickled: {error}"
        )
        wire.send((True, RuntimeError(what)))


def main(handles: Sequence[int]) -> None:
    """Fork a process for each connection, and end all of them when standard input is closed. Where
    no process may fork, there is one connection, which this process serves."""
    if not host_system.FORKS:
        host_system.work_for_user()
        threading.Thread(target=_end_with_input, args=([],), daemon=True).start()
        _serve(Connection(handles[0]))
        sys.stderr.flush()
        os._exit(0)
    import_module("pearl_devices.primitives.envs.gym_make")  # before forking, once for all
    gc.collect()
    gc.freeze()  # else the first garbage collection of each process copies all imported pages
    children = []
    for place, handle in enumerate(handles):
        child = host_system.fork()
        if child:
            os.close(handle)
            children.append(child)
            continue
        status = 1
        try:
            for other in (0, *handles[place + 1 :]):
                os.close(other)
            os.open(os.devnull, os.O_RDONLY)
            _serve(Connection(handle))
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    _end_with_input(children)


def _end_with_input(children: list[int]) -> None:
    """Once standard input is closed, end this process and all that it has started; children get
    GRACE_S."""
    while os.read(0, 1 << 12):
        pass
    end_s = time.monotonic() + GRACE_S
    while (children or not host_system.FORKS) and time.monotonic() < end_s:
        children = [c for c in children if host_system.collect_end(c) is None]
        time.sleep(0.005)
    host_system.kill_group(os.getpid())


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]])
