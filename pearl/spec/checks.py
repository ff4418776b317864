"""Checks from a document to a `System`: every section against its model, then the sections
together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import ValidationError

from pearl.algorithms import ALGORITHMS, FAMILIES, undotted_name_error
from pearl.algorithms import algorithm as module
from pearl.algorithms.families.learners import added_tasks
from pearl.algorithms.fields import MODULE
from pearl.algorithms.options import Acting, Deep, ReplayOptions, RolloutOptions
from pearl.algorithms.tabular_options import find_idle_averaging
from pearl.errors import SpecError
from pearl.graph.limits import LIMITS, SLACK_LIMITS, Limits
from pearl.rooms import use_room
from pearl.spec import trust
from pearl.spec.catalogue import catalogue
from pearl.spec.env_spaces import env_spec, is_unknown_env
from pearl.spec.messages import Complaint, fields_of, list_complaints, suggest_nearest
from pearl.spec.models import LimitsSection, Spec, Train
from pearl.spec.platform_files import read_platform, unfold
from pearl.spec.system import EnvSpec, StaticSpec
from pearl.spec.yaml_reader import Document, Where, parse, read_bytes, show
from pearl.task_names import CALLED, TASKS, present_name
from pearl_devices import BACKENDS, Platform
from pearl_devices.discover import host
from pearl_devices.user_imports import refuse_standard

SECTIONS: Mapping[str, TypeAdapter[Any]] = {
    key: TypeAdapter(hint) for key, hint in get_type_hints(Spec, include_extras=True).items()
}
"""Top-level key → the model that checks its section."""

KEYS_OF_ALGORITHMS = {*get_type_hints(ReplayOptions), *get_type_hints(RolloutOptions)}
"""Keys of the section `algorithm` of the families of algorithms."""

ENVIRONMENT = re.compile(r"([A-Za-z_][\w.]*:)?[\w./-]+")
"""Forms of an environment's name: a gymnasium id, `module:Id-v0`, or `module:callable`."""

CLUSTERS = {"ray": "pearl.cluster.discovery:platform_by"}
"""Platform that a running cluster is → the function that asks its nodes. Its room may be left
out."""

Lines = list[tuple[Where, str]]
"""The path of keys to a value, and the line about its problem."""


def read_shipped(folder: str = "pearl_configs") -> dict[str, str]:
    """Read the configs (or, in `pearl_configs.platforms`, platforms) that ship: name → text."""
    found = (f for f in files(folder).iterdir() if f.name.endswith(".yaml"))
    return {f.name.removesuffix(".yaml"): f.read_text(encoding="utf-8") for f in found}


class SpecChecker:
    """One pass over a document. `lines` collects every problem; nothing is raised.

    imports: whether code that the spec names may be imported. Otherwise a custom environment is not
        asked for its spaces, nor a custom algorithm for its options.
    given: a platform in the place of `host` and `ray`; limits are not checked then.
    env: the environment that was found, or None.
    actions: action spaces of the algorithm, if known.
    """

    def __init__(
        self,
        document: Document,
        folder: Path | None,
        *,
        imports: bool,
        given: Platform | None = None,
    ) -> None:
        self.document, self.folder, self.imports = document, folder, imports
        self.given = given
        self.lines: Lines = []
        self.env: EnvSpec | None = None
        self.actions = "both"

    def complain(self, found: list[Complaint]) -> None:
        self.lines += [(where, self.document.say(where, what)) for where, what in found]

    def check_all(self, name: str, path: str | None) -> StaticSpec | None:
        """Return the checked spec, or None with the reasons in `lines`."""
        data = self.document.data
        for key in data:
            if key not in SECTIONS:
                allowed = ", ".join(SECTIONS)
                near = suggest_nearest(key, SECTIONS)
                inner = data.get("algorithm")
                if isinstance(inner, Mapping) and key in KEYS_OF_ALGORITHMS:
                    near = f" (did you mean algorithm.{key}?)"
                what = f"unknown key{near}; allowed are {allowed}"
                self.complain([((key,), what)])
        named = self.section("name", data.get("name"))
        platform, written = self.platform(data.get("platform", "host"))
        limits_given = data.get("limits", {})
        alone = isinstance(limits_given, Mapping) and limits_given.get("learners", 1) == 1
        if written == "host" and alone:
            limits_given = {"max_lanes": 1, **limits_given}
        algorithm = self.algorithm(data.get("algorithm"))
        objective = self.section("objective", data.get("objective", "throughput"))
        section = self.section("limits", limits_given, LimitsSection)
        train = self.section("train", data.get("train", {}), Train)
        if algorithm is not None and section is not None:
            self.complain(list(_check_groups(algorithm, section)))
            self.complain(list(find_idle_averaging(algorithm, section.averaging)))
        if section is not None and platform is not None and self.given is None:
            self.complain(list(_check_learners(section, platform)))
        if train is not None and train.on_env_failure == "restart" and not _stores(algorithm):
            what = (
                "given 'restart'; only algorithms with a replay support it: a restarted "
                "environment breaks the rollout that others learn from; allowed: stop"
            )
            self.complain([(("train", "on_env_failure"), what)])
        if algorithm is not None:
            found = algorithm.disagreements()
            self.complain([(("algorithm", *where), what) for where, what in found])
            self.ask(algorithm)
        if isinstance(limits_given, Mapping) and self.given is None:
            own = algorithm is not None and algorithm.name not in ALGORITHMS
            more = added_tasks(section.learners) if section is not None else ()
            # Only the graph of a user-defined algorithm knows them.
            tasks = None if own else tuple(dict.fromkeys((*TASKS, *more)))
            self.complain(list(find_unknown_names(limits_given, platform, tasks)))
            if objective == "makespan":
                self.complain(list(find_pointless_limits(limits_given)))
        if self.lines or platform is None or algorithm is None:
            return None
        name = named or name
        raw = {
            "name": name,
            "algorithm": _algorithm_written(algorithm, data["algorithm"]),
            "platform": written,
            "objective": objective,
            "limits": _written("limits", section),
            "train": _written("train", train),
        }
        return StaticSpec(
            name=name,
            path=path,
            sha256=trust.digest(raw),
            algorithm=algorithm,
            platform=platform,
            objective=objective,
            limits=_limits(section),
            train=train,
            raw=raw,
        )

    def ask(self, algorithm: Acting) -> None:
        """Find the facts about the environment, unless its name or the network's is refused."""
        refused = list(find_misnamed_env(algorithm))
        self.complain(refused)
        known = algorithm.spaces is not None or ":" not in algorithm.env
        if not refused and (self.imports or known):
            self.env, found = env_spec(algorithm, self.actions)
            self.complain(found)

    def section(self, key: str, data: Any, model: type = Spec) -> Any:
        """Return the checked section, or None if it is wrong. model: has the allowed keys."""
        adapter = TypeAdapter(model) if key == "algorithm" else SECTIONS[key]
        try:
            return adapter.validate_python(data)
        except ValidationError as error:
            others = _options_by_name() if key == "algorithm" else {}
            self.complain(list_complaints(error, data, (key,), model, others))
            return None

    def algorithm(self, data: Any) -> Acting | None:
        """Return the algorithm's options. If they are wrong, the environment is still looked up."""
        if not isinstance(data, Mapping):
            needed = "a mapping with at least name and env"
            given = "missing" if "algorithm" not in self.document.data else f"given {show(data)}"
            self.complain([(("algorithm",), f"{given}; needed: {needed}")])
            return None
        found = self.options(data)
        env = data.get("env")
        if found is None and isinstance(env, str) and "spaces" not in data:
            self.complain(is_unknown_env(env))
        return found

    def options(self, data: Mapping[str, Any]) -> Acting | None:
        """Return the options of the algorithm that `data` names, checked by its module."""
        name, where = data.get("name"), ("algorithm", "name")
        if not isinstance(name, str) or (name not in ALGORITHMS and "." not in name):
            missing = f"missing; allowed are {', '.join(ALGORITHMS)}, a module path"
            self.complain([(where, undotted_name_error(name) if "name" in data else missing)])
            return None
        try:
            if name not in ALGORITHMS:
                if not MODULE.fullmatch(name):
                    raise ValueError("allowed: the path of a module, such as my_package.mine")
                refuse_standard(name)
            if name not in ALGORITHMS and not self.imports:
                return self.check_unimported(data)
            source = module(name)
        except ValueError as error:
            self.complain([(where, f"given {show(name)}; {error}")])
            return None
        except SpecError as error:
            self.complain([(where, problem) for problem in error.problems])
            return None
        self.actions = source.ACTIONS
        found: Acting | None = self.section("algorithm", data, source.Options)
        return found

    def check_unimported(self, data: Mapping[str, Any]) -> Acting | None:
        """Check the options of a module that is not imported: against those of its family or, if it
        has none, only the options of every algorithm.
        """
        for family in FAMILIES.values():
            with suppress(ValidationError):
                found: Acting = TypeAdapter(family.own).validate_python(data)
                return found
        shared = {key: data[key] for key in fields_of(Acting) if key in data}
        checked: Acting | None = self.section("algorithm", shared, Acting)
        return checked

    def platform(self, data: Any) -> tuple[Platform | None, Any]:
        """Return the platform and its resolved form, or None with the reasons in `lines`."""
        where: Where = ("platform",)
        if self.given is not None and data in ("host", "ray"):
            return self.given, data
        if isinstance(data, Mapping):
            platform, entry, found = read_platform(data, where, imports=self.imports)
            self.complain(found)
            return platform, entry and unfold(entry, "inline")
        if not isinstance(data, str):
            needed = "host, ray, a shipped name, a path, or a mapping"
            self.complain([(where, f"given {show(data)}; allowed: {needed}")])
            return None, None
        if data == "host":
            return host(), "host"
        if data == "ray":
            return self.cluster(), "ray"
        try:
            document, name = self.platform_file(data)
        except SpecError as error:
            origin = self.document.say(where, f"given {show(data)}")
            self.lines += [(where, f"{origin}; {line}") for line in error.problems]
            return None, None
        self.lines += document.problems
        platform, entry, found = read_platform(document.data, (), name, imports=self.imports)
        self.lines += [(("platform", *at), document.say(at, what)) for at, what in found]
        return platform, entry and unfold(entry, name)

    def cluster(self) -> Platform | None:
        """Return the running cluster, or None with the reason in `lines`."""
        train = self.document.data.get("train")
        asked = train.get("carrier") if isinstance(train, Mapping) else None
        try:
            return use_room(CLUSTERS["ray"], "platform ray")(asked)  # type: ignore[no-any-return]
        except SpecError as error:
            self.complain([(("platform",), f"given 'ray'; {line}") for line in error.problems])
            return None

    def platform_file(self, given: str) -> tuple[Document, str]:
        """Read the document of a shipped platform or of a path relative to the spec's folder."""
        texts = read_shipped("pearl_configs.platforms")
        if given in texts:
            return parse(texts[given].encode(), f"{given}.yaml"), given
        if "/" not in given and not given.endswith((".yaml", ".yml")):
            known = ["host", "ray", *sorted(texts)]
            near = suggest_nearest(given, known)
            device = next(iter(difflib.get_close_matches(given, catalogue(), 1, 0.8)), None)
            if device is not None:
                kind = catalogue()[device]["kind"]
                is_host = kind == next(iter(BACKENDS))  # the kind of every host device
                made = f"cpu={device}" if is_host else f"cpu=here,{kind}={device}"
                near = (
                    f"; {device} is a device: `pearl init --platform {made} box.yaml` writes a "
                    "platform with it"
                )
                if not is_host:
                    near += f", and `pearl advise SPEC --add {device}` says what it is worth"
            raise SpecError(
                f"no platform of that name{near}; allowed are {', '.join(known)}, a path"
            )
        # A value from --set or from a mapping has no file; its path is relative to the current
        # folder.
        from_file = self.folder and self.document.origins.get(("platform",)) != "set"
        path = self.folder / given if self.folder and from_file else Path(given)
        return parse(read_bytes(path, str(path)), str(path)), path.stem


def _options_by_name() -> dict[str, type[Acting]]:
    """The options of every algorithm whose module is complete."""
    found = {}
    for name in ALGORITHMS:
        with suppress(SpecError):
            found[name] = module(name).Options
    return found


def find_misnamed_env(algorithm: Acting) -> Iterator[Complaint]:
    """Return the problem of an environment name that has no known form, or names Python's code."""
    if not ENVIRONMENT.fullmatch(algorithm.env):
        allowed = "a gymnasium id, module:Id-v0 or module:callable"
        yield ("algorithm", "env"), f"given {show(algorithm.env)}; allowed: {allowed}"
    network = algorithm.network if isinstance(algorithm, Deep) else None
    for key, given in (("env", algorithm.env), ("network", network)):
        if given is not None and ":" in given:
            try:
                refuse_standard(given)
            except ValueError as error:
                yield ("algorithm", key), f"given {show(given)}; {error}"


def _stores(a: Acting | None) -> bool:
    """Whether an algorithm stores single transitions and learns from them; None if unknown."""
    return a is None or hasattr(a, "replay")


def _check_groups(algorithm: Acting, limits: LimitsSection) -> Iterator[Complaint]:
    """Problems of environment groups that the algorithm or its environments do not allow."""
    groups, envs = limits.env_groups, algorithm.num_envs
    if groups > 1 and not isinstance(algorithm, ReplayOptions):
        what = f"given {groups}; {algorithm.name} acts in all environments at once: 1 is allowed"
        yield ("limits", "env_groups"), what
    elif envs % groups:
        what = f"given {groups}; a divisor of num_envs ({envs}) is needed, so that groups are equal"
        yield ("limits", "env_groups"), what


def _check_learners(limits: LimitsSection, platform: Platform) -> Iterator[Complaint]:
    """Problems of learners without a lane each, or of a reduction for one learner."""
    if limits.reduction is not None and limits.learners == 1:
        what = f"given {limits.reduction}; one learner has no gradients to average"
        yield ("limits", "reduction"), f"{what}: leave it out, or set limits.learners"
    kind = platform.device(platform.host).kind
    rooms = {d.name: d.max_lanes for d in platform.devices if d.kind == kind}
    most = min(sum(rooms.values()), limits.max_lanes or sum(rooms.values()))
    if limits.learners > most:
        lanes = ", ".join(f"{name} {n}" for name, n in rooms.items())
        held = f" and limits.max_lanes {limits.max_lanes}" if limits.max_lanes else ""
        what = f"given {limits.learners}; each needs a lane of its own, and there are {lanes}{held}"
        yield ("limits", "learners"), f"{what}: {most} at most, or add cores or hosts"


def find_pointless_limits(limits: Mapping[str, Any]) -> Iterator[Complaint]:
    """Return the limits, as written, that have no meaning for a single iteration."""
    for key, limit in LIMITS.items():
        if not limit.single and limits.get(key) is not None:
            what = (
                f"given {show(limits[key])}; objective makespan is about the first iteration alone "
                "and has no such limit: leave it out, or choose throughput or power_efficiency"
            )
            yield ("limits", key), what


def find_unknown_names(
    limits: Mapping[str, Any], platform: Platform | None, known_tasks: tuple[str, ...] | None
) -> Iterator[Complaint]:
    """Return the tasks and devices in `limits` that do not exist, if those are known."""
    devices = tuple(d.name for d in platform.devices) if platform else None

    def mapping(key: str) -> Mapping[str, Any]:
        found = limits.get(key)
        return found if isinstance(found, Mapping) else {}

    def listed(value: Any) -> list[Any]:
        return value if isinstance(value, list) else []

    tasks: list[tuple[Where, Any]] = []
    places: list[tuple[Where, Any]] = [(("memory", d), d) for d in mapping("memory")]
    for key in ("devices", "variants", "pin", "replicas"):
        tasks += [((key, task), task) for task in mapping(key)]
    for task, names in mapping("devices").items():
        places += [(("devices", task, i), name) for i, name in enumerate(listed(names))]
    places += [(("pin", task), name) for task, name in mapping("pin").items()]
    for key in ("together", "apart"):
        for i, pair in enumerate(listed(limits.get(key))):
            tasks += [((key, i, j), task) for j, task in enumerate(listed(pair))]
    for kind, uses, known in (("task", tasks, known_tasks), ("device", places, devices)):
        for where, name in uses:
            if known is not None and isinstance(name, str) and name not in known:
                now = present_name(name)
                if kind == "task" and now in known:
                    yield ("limits", *where), f"no task {show(name)}: its name is {now} now"
                    continue
                own = {n for n in CALLED.get(name.lower(), ()) if n in known and kind == "task"}
                near = f" (did you mean {' or '.join(sorted(own))}?)" if own else ""
                near = near or suggest_nearest(name, known)
                allowed = f"allowed are {', '.join(known)}"
                yield ("limits", *where), f"no {kind} {show(name)}{near}; {allowed}"


def _written(key: str, value: Any) -> Any:
    return SECTIONS[key].dump_python(value, mode="json", exclude_none=True)


def _algorithm_written(algorithm: Acting, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as plain data. Options of a module that was not imported stay as given."""
    options = TypeAdapter(type(algorithm))
    written: dict[str, Any] = options.dump_python(algorithm, mode="json", exclude_none=True)
    return {**given, **written} if type(algorithm) is Acting else written


def _limits(section: LimitsSection) -> Limits:
    return Limits(
        replicas=section.replicas,
        env_groups=section.env_groups,
        learners=section.learners,
        averaging=section.averaging,
        reduction=section.reduction,
        any_order=section.any_order,
        **{limit.field: getattr(section, limit.key) for limit in LIMITS.values()},
        **{key: getattr(section, key) for key in SLACK_LIMITS},
    )
