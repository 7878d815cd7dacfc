"""What a launch needs to know, checked at once: where the cluster is, what runs there, and where the run lies."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ectype.errors import EctypeError
from ectype.recipe.load import load_placement, load_recipe, shipped

VARIABLES = {
    "name": "XPK_RUN_NAME", "base": "XPK_BASE_OUTPUT_DIR", "cluster": "XPK_CLUSTER", "project": "XPK_PROJECT",
    "zone": "XPK_ZONE", "device_type": "XPK_DEVICE_TYPE", "image": "ECTYPE_IMAGE",
}  # fmt: skip
"""Environment variable that gives a flag its default, for the flags that a launch can't do without."""
PRIORITIES = ("very-low", "low", "medium", "high", "very-high")
CAPACITIES = ("on-demand", "spot", "flex")
MOST_CHARACTERS_OF_A_NAME = 28
"""Of a job, attempt included: xpk's limit for slices made of several cubes; it is 40 elsewhere."""
_CHARACTERS_OF_AN_ATTEMPT = 6
_CHARACTERS_OF_A_LABEL = 63
_PLACEMENTS = {
    ("tpu7x-512", 1): "tpu7x-4x8x8", ("tpu7x-4x8x8", 1): "tpu7x-4x8x8", ("tpu7x-128", 1): "tpu7x-4x4x4",
    ("tpu7x-4x4x4", 1): "tpu7x-4x4x4", ("tpu7x-128", 2): "tpu7x-4x4x4-two-slices",
    ("tpu7x-4x4x4", 2): "tpu7x-4x4x4-two-slices", ("v5p-256", 1): "v5p-4x4x8", ("v5p-4x4x8", 1): "v5p-4x4x8",
}  # fmt: skip
"""Shipped placement by device type and slices. xpk counts cores, of which v5p and Ironwood have two a chip."""
_CORES_OF_A_CHIP = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2, "tpu7x": 2}
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_VOLUME = re.compile(r"[a-z0-9]([-a-z0-9._]*[a-z0-9])?")
_BASE = re.compile(rf"gs://{_VOLUME.pattern}(/[^*?\[\]]*)?|/[^*?\[\]]*")
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_ZONE = re.compile(rf"{_REGION.pattern}-(ai[0-9]+)?[a-z]")
_COUNT = "[1-9][0-9]{0,5}"
_TPU = re.compile(rf"(tpu[0-9]+x?|v[0-9]+[a-z]*|v5litepod)-({_COUNT}|{_COUNT}(x{_COUNT}){{1,2}})")


@dataclass(frozen=True)
class Slice:
    """Machines to ask for, and how the recipe is laid out on them."""

    device_type: str
    """As xpk names it: `tpu7x-512`, `tpu7x-4x8x8`, `v5p-256`, `v6e-256`."""
    num_slices: int
    placement: str


@dataclass(frozen=True)
class Cluster:
    """Where xpk and kubectl find the cluster."""

    cluster: str
    project: str
    zone: str
    location: str | None = None
    """Of the cluster itself; None: the region of `zone`, which is where xpk creates it."""
    namespace: str = "default"

    @property
    def context(self) -> str:
        """The context that `gcloud container clusters get-credentials` writes for kubectl."""
        return f"gke_{self.project}_{self.where}_{self.cluster}"

    @property
    def where(self) -> str:
        """Location of the control plane."""
        return self.location or self.zone.rpartition("-")[0]


def require(given: Mapping[str, object]) -> None:
    """Refuse what is missing, all of it in one error.

    Args:
        given: value by name in `VARIABLES`.

    Raises:
        EctypeError: some have no value.
    """
    missing = [name for name, value in given.items() if value in (None, "")]
    if missing:
        flags = [f"--{name.replace('_', '-')}" for name in missing]
        pairs = zip(flags, missing, strict=True)
        both = [f"{flag} or ${VARIABLES[name]}" for flag, name in pairs]
        raise EctypeError(f"no {', '.join(flags)}", "a value for each", f"give {'; '.join(both)}")


def check_name(name: str) -> str:
    """A name that jobs can begin with.

    Raises:
        EctypeError: Kubernetes or xpk would refuse it.
    """
    most = MOST_CHARACTERS_OF_A_NAME - _CHARACTERS_OF_AN_ATTEMPT
    if not _NAME.fullmatch(name) or len(name) > most:
        raise EctypeError(
            f"--name {name!r}", f"at most {most} lower-case letters, digits and dashes, a letter first",
            "choose a shorter or plainer name; the attempt's number is added to it",
        )  # fmt: skip
    return name


def name_from(run: str) -> str:
    """A name from a run folder's.

    Raises:
        EctypeError: it is too long.
    """
    return check_name(_plain_name(run))


def local_name(run: str) -> str:
    """The same for jobs of this machine, whose names nobody else has to know: a long one is cut."""
    return check_name(_plain_name(run)[: MOST_CHARACTERS_OF_A_NAME - _CHARACTERS_OF_AN_ATTEMPT].rstrip("-"))


def _plain_name(run: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", Path(run).absolute().name.lower()).strip("-")
    return plain if plain[:1].isalpha() else f"run-{plain}".rstrip("-")


def check_cluster(given: Cluster) -> Cluster:
    """Refuse what names no cluster, project or place, by the flag.

    Raises:
        EctypeError: the first such.
    """
    label = "lower-case letters, digits and dashes"
    forms: list[tuple[str, str, re.Pattern[str], str]] = [
        ("--cluster", given.cluster, _NAME, label),
        ("--project", given.project, _PROJECT, f"a project's ID: 6 to 30 {label}"),
        ("--zone", given.zone, _ZONE, "a zone, as us-central1-a"),
        ("--namespace", given.namespace, _LABEL, label),
    ]  # fmt: skip
    for flag, value, form, expected in forms:
        if not form.fullmatch(value) or len(value) > _CHARACTERS_OF_A_LABEL:
            raise EctypeError(f"{flag} {value[:80]!r}", expected, "see `gcloud container clusters list`")
    if given.location is not None and not (_REGION.fullmatch(given.location) or _ZONE.fullmatch(given.location)):
        raise EctypeError(f"--location {given.location!r}", "a region or a zone", "as us-central1 or us-central1-a")
    return given


def check_base(base: str) -> str:
    """The folder of runs, without a slash at its end.

    Raises:
        EctypeError: it is neither in a bucket nor an absolute path.
    """
    if not _BASE.fullmatch(base):
        raise EctypeError(
            f"--base {base!r}",
            "gs://BUCKET/FOLDER, or an absolute path that the job has",
            "as --base gs://my-runs/olmo",
        )
    return base.rstrip("/")


def check_object(flag: str, name: str, kind: str) -> str:
    """Name of an object of Kubernetes.

    Args:
        kind: of the object, as `kubectl get` takes it.
    """
    if not _LABEL.fullmatch(name) or len(name) > _CHARACTERS_OF_A_LABEL:
        raise EctypeError(f"{flag} {name[:80]!r}", f"the name of one of {kind}", f"see `kubectl get {kind}`")
    return name


def check_platform(placement: str, platform: Literal["gpu", "tpu"]) -> None:
    """Refuse a placement for other machines than are asked for; one that only the job has is not looked at.

    Raises:
        EctypeError: that.
    """
    if only_in_job(placement):
        return
    found = load_placement(placement)
    if found.platform != platform:
        raise EctypeError(
            f"placement {placement}, for platform {found.platform}", f"one for {platform}, which is asked for",
            "choose another --placement; `ectype plan` says whether it fits",
        )  # fmt: skip


def check_priority(priority: str) -> str:
    """One of Kueue's priorities as xpk sets them up."""
    if priority not in PRIORITIES:
        raise EctypeError(f"--priority {priority!r}", f"one of {', '.join(PRIORITIES)}", "choose one of these")
    return priority


def check_capacity(capacity: str | None) -> str | None:
    """One of the ways in which a cluster makes node pools by itself; None where it does not."""
    if capacity not in (None, *CAPACITIES):
        raise EctypeError(f"--capacity {capacity!r}", f"one of {', '.join(CAPACITIES)}", "choose one of these")
    return capacity


def placement_for(device_type: str, num_slices: int) -> str:
    """The shipped placement of a slice, so that the case study's users need not name one.

    Raises:
        EctypeError: none ships for it.
    """
    found = _PLACEMENTS.get((device_type, num_slices))
    if found is None:
        known = ", ".join(f"{kind}{f' x {count}' if count > 1 else ''}" for kind, count in _PLACEMENTS)
        raise EctypeError(
            f"no --placement, and none ships for {num_slices} x {device_type!r}", f"a placement, or one of {known}",
            "give --placement NAME_OR_PATH; `ectype plan` says whether it fits",
        )  # fmt: skip
    return found


def parse_volumes(flag: Literal["--bucket", "--claim"], pairs: list[str] | None) -> tuple[tuple[str, str], ...]:
    """`NAME=/PATH` pairs; a bucket may begin with `gs://`.

    Raises:
        EctypeError: another form.
    """
    found: dict[str, str] = {}
    for pair in pairs or ():
        name, _, path = pair.partition("=")
        name = name.removeprefix("gs://").rstrip("/") if flag == "--bucket" else name
        _check_volume(f"{flag} {pair!r}", flag.removeprefix("--"), name, path, "NAME=/PATH")
        if path.rstrip("/") in ("", *found):
            raise EctypeError(f"{flag} {pair!r}: {path} is taken", "a path of its own", "mount it elsewhere")
        found[path.rstrip("/")] = name
    return tuple((name, path) for path, name in found.items())


def _check_volume(given: str, kind: str, name: str, path: str, form: str) -> None:
    """Refuse a pair, and name the part that is wrong."""
    if not path.startswith("/"):
        raise EctypeError(f"{given}: no absolute path behind =", form, "say at which /PATH the job has it")
    if "/" in name:
        raise EctypeError(f"{given}: a folder of a {kind}", form, f"mount the whole {kind}; --run may name a folder")
    if not _VOLUME.fullmatch(name):
        raise EctypeError(
            f"{given}: {name!r} is no name of a {kind}", form, f"{kind} names are lower-case letters, digits, - _ ."
        )


def parse_slice(text: str) -> Slice:
    """A slice in words: `DEVICE_TYPE[*SLICES]=PLACEMENT`, as `tpu7x-128=tpu7x-4x4x4` or `v5p-256*2=mine.yaml`.

    Raises:
        EctypeError: another form.
    """
    machines, separator, placement = text.partition("=")
    device_type, times, count = machines.partition("*")
    if not separator or not placement or (times and not re.fullmatch(_COUNT, count)):
        raise EctypeError(
            f"--or-smaller {text!r}", "DEVICE_TYPE[*SLICES]=PLACEMENT", "as --or-smaller tpu7x-128=tpu7x-4x4x4"
        )
    return check_slice(Slice(device_type, int(count) if times else 1, placement))


def chips_of(device_type: str) -> tuple[str, int]:
    """Generation and chips of a slice as xpk names it, by its topology or its count.

    Of the generations with two cores a chip xpk counts cores (`_CORES_OF_A_CHIP`); of the others, chips.
    """
    generation, _, size = device_type.rpartition("-")
    if "x" in size:
        return generation, math.prod(int(part) for part in size.split("x"))
    return generation, int(size) // _CORES_OF_A_CHIP.get(generation, 1)


def check_smaller(slices: list[Slice]) -> None:
    """Refuse a size no smaller than one before it: to wait for it would be to wait no less.

    Raises:
        EctypeError: names it.
    """
    fewest: dict[str, int] = {}
    for one in slices:
        generation, chips = chips_of(one.device_type)
        chips *= one.num_slices
        if chips >= fewest.get(generation, chips + 1):
            raise EctypeError(
                f"--or-smaller {one.device_type} x {one.num_slices}, {chips} chips",
                f"fewer than {fewest[generation]}, which are asked for before it", "name a smaller slice, or drop it",
            )  # fmt: skip
        fewest[generation] = chips


def check_slice(asked: Slice) -> Slice:
    """Refuse a device type that is no TPU's, or a placement that does not exist.

    Raises:
        EctypeError: one of both.
    """
    if not _TPU.fullmatch(asked.device_type):
        raise EctypeError(
            f"--device-type {asked.device_type!r}", "a TPU as xpk names it: tpu7x-512, tpu7x-4x8x8, v5p-256, v6e-256",
            "see `xpk workload create --help`; for GPUs use `ectype launch slurm` or `ectype launch manifest --gpus`",
        )  # fmt: skip
    if asked.num_slices < 1:
        raise EctypeError(f"--num-slices {asked.num_slices}", "at least 1", "give the number of slices")
    load_placement(asked.placement)
    return asked


def check_in_image(recipe: str, placement: str) -> None:
    """Refuse recipes and placements that only this machine has: a job would not find them.

    Raises:
        EctypeError: a relative path to a file.
    """
    for kind, name in (("recipe", recipe), ("placement", placement)):
        if name not in shipped(kind) and not name.startswith("/"):
            raise EctypeError(
                f"{kind} {name!r}, a path of this machine", f"a shipped {kind}, or an absolute path in the job",
                "put the file on the mounted volume and give its path there",
            )  # fmt: skip


def only_in_job(recipe: str) -> bool:
    """Whether the recipe is a file of the job's that this machine does not have."""
    return os.path.isabs(recipe) and not os.path.isfile(recipe)


def target_of(recipe: str, overrides: tuple[str, ...], asked: int | None) -> int:
    """Completed updates at which the run is done: what was asked for, else where the recipe ends.

    Raises:
        EctypeError: no such recipe, a target beyond its end (the program would end before it, again and again), or
            none for a recipe that only the job has.
    """
    if only_in_job(recipe):
        if asked is None:
            raise EctypeError(
                f"no --target-steps, and {recipe} is not on this machine", "a count of updates",
                "give --target-steps, the recipe's duration_steps or less",
            )  # fmt: skip
        return asked
    duration = load_recipe(recipe, overrides).duration_steps
    if asked is not None and asked > duration:
        raise EctypeError(
            f"--target-steps {asked}", f"at most {duration}, the recipe's duration_steps",
            "lower it, or name the recipe that goes on from there: `ectype recipes`",
        )  # fmt: skip
    return duration if asked is None else asked


def in_job(path: str | None, mounts: dict[str, str], how: str = "--mount gs://BUCKET=/PATH") -> str | None:
    """A path as the job sees it: `gs://...` below a mounted bucket becomes a path of the mount.

    Args:
        mounts: path in the job by bucket or folder of a bucket.
        how: the flag that names a mount.

    Raises:
        EctypeError: a bucket that is not mounted.
    """
    if path is None or path.startswith(("/", "package:")):
        return path
    if not path.startswith("gs://"):
        raise EctypeError(
            f"{path}, a path of this machine", "gs://BUCKET/..., or an absolute path in the job", "give one of those"
        )
    for prefix, mount in sorted(mounts.items(), key=lambda pair: -len(pair[0])):
        if path == prefix or path.startswith(f"{prefix}/"):
            return mount + path.removeprefix(prefix)
    raise EctypeError(
        f"{path} is in no mounted bucket", "a path of the job's file system, through which runs and weights are kept",
        f"mount the bucket (docs/launch.md) and say where with {how}",
    )  # fmt: skip


def parse_mounts(pairs: tuple[str, ...]) -> dict[str, str]:
    """`gs://BUCKET[/FOLDER]=/PATH` pairs.

    Raises:
        EctypeError: another form.
    """
    found, form = {}, "gs://BUCKET[/FOLDER]=/PATH"
    for pair in pairs:
        bucket, _, path = pair.partition("=")
        if not bucket.startswith("gs://"):
            raise EctypeError(f"--mount {pair!r}: {bucket!r} does not begin with gs://", form, "name the bucket so")
        _check_volume(f"--mount {pair!r}", "bucket", bucket.removeprefix("gs://").partition("/")[0], path, form)
        found[bucket.rstrip("/")] = path.rstrip("/")
    return found
