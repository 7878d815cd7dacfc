"""Named held-out sets: those of a recipe, a reference and the command line, and presets whose text the user brings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ectype.artifacts import package_path
from ectype.errors import EctypeError
from ectype.recipe.parse import nearest, parse
from ectype.recipe.spec import HeldOutSet
from ectype.recipe.yaml_text import read_mapping

MAIN_SET = "held-out"
"""The reference's own text, which a verdict is reached on."""
PALOMA_SOURCES = (
    "4chan_meta_sep", "c4_100_domains", "c4_en", "dolma-v1_5", "dolma_100_programing_languages",
    "dolma_100_subreddits", "falcon-refinedweb", "gab", "m2d2_s2orc_unsplit", "m2d2_wikipedia_unsplit",
    "manosphere_meta_sep", "mc4", "ptb", "redpajama", "twitterAAE_HELM_fixed", "wikitext_103",
)  # fmt: skip
"""Folders of the published data set, spelled as there: `SOURCE/val/*.jsonl.gz` and `SOURCE/test/*.jsonl.gz`."""
_PALOMA: dict[str, Any] = {"split": "val", "window_tokens": 2048, "prefix": "end_of_text"}
_BUNDLED = "package:demo/bundle/tokens/heldout"
_C4_TOKENS = 2048 * 8192


def presets() -> dict[str, str]:
    """Names of the presets, with what each is and what the user brings."""
    return {
        "c4-16m": f"C4's validation text as one token file, its first {_C4_TOKENS:,} tokens in windows of 8,192",
        "paloma": "Paloma by source: its folder of SOURCE/val/*.jsonl.gz; documents one by one, 2,048 tokens",
        "paloma-subdomains": "the same, by subdomain of each source",
        "paloma/SOURCE": f"one source of it: {', '.join(PALOMA_SOURCES)}",
        "bundled": "the demo's five domains; nothing to bring",
    }


def preset(name: str, path: Path | None) -> HeldOutSet:
    """The preset `name` on the user's text at `path`.

    Raises:
        EctypeError: no such preset, or its text is missing or not wanted.
    """
    base, _, source = name.partition("/")
    known = {"c4-16m", "paloma", "paloma-subdomains", "bundled"}
    if base not in known or (source and (base != "paloma" or source not in PALOMA_SOURCES)):
        near = nearest(name, [*sorted(known), *(f"paloma/{source}" for source in PALOMA_SOURCES)])
        raise EctypeError(
            f"held-out preset {name!r}{near}", "; ".join(f"{key}: {text}" for key, text in presets().items()),
            "name one of them, or a YAML file with the set",
        )  # fmt: skip
    if base == "bundled":
        return HeldOutSet(tokens=path or package_path(_BUNDLED), dtype="uint16", window_tokens=256)
    if path is None:
        raise EctypeError(f"held-out preset {name} without its text", f"--held-out {name}=PATH", presets()[base])
    if base == "c4-16m":
        return HeldOutSet(tokens={"c4": path}, window_tokens=8192, first_tokens=_C4_TOKENS)
    return HeldOutSet(documents=_paloma_folders(path, source), subdomains=base == "paloma-subdomains", **_PALOMA)


def _paloma_folders(path: Path, source: str) -> dict[str, Path]:
    """Source -> folder; those that the user's copy lacks are left out, as long as it has one."""
    wanted = (source,) if source else PALOMA_SOURCES
    found = {name: path / name for name in wanted if (path / name / _PALOMA["split"]).is_dir()}
    if not found:
        raise EctypeError(
            f"{path} holds no {source or 'source'} of Paloma", f"folders such as {wanted[0]}/{_PALOMA['split']}",
            "give the folder that the data set was cloned or unpacked to",
        )  # fmt: skip
    return found


def named_sets(given: Sequence[str]) -> dict[str, HeldOutSet]:
    """Sets from the command line: `PRESET`, `PRESET=PATH`, `NAME=FILE.yaml` with one set, or `FILE.yaml` with several.

    Raises:
        EctypeError: a name or a file that means nothing, or a name that is given twice.
    """
    sets: dict[str, HeldOutSet] = {}
    for text in given:
        name, equals, place = text.rpartition("=") if "=" in text else (text, "", "")
        if not equals and text.endswith((".yaml", ".yml")):
            found = _read(Path(text))
            new = {str(key): _one(value, f"held-out set {key!r} of {text}", Path(text)) for key, value in found.items()}
        elif place.endswith((".yaml", ".yml")):
            new = {name: _one(_read(Path(place)), f"held-out set {place}", Path(place))}
        else:
            new = {name: preset(name, Path(place) if equals else None)}
        if twice := sorted(new.keys() & sets.keys()):
            raise EctypeError(f"held-out set {twice[0]!r} is given twice", "each name once", "rename one of them")
        sets |= new
    return check_names(sets)


def plain_set_name(name: str) -> str:
    """The name of a set in names of files: a slash is a dot there."""
    return name.replace("/", ".")


def check_names(sets: dict[str, HeldOutSet]) -> dict[str, HeldOutSet]:
    """`sets`, whose names become file names.

    Raises:
        EctypeError: a name with other characters, or that of the reference's own text, or two that make one file name.
    """
    by_file: dict[str, str] = {}
    for name in sets:
        if (other := by_file.setdefault(plain_set_name(name), name)) != name:
            raise EctypeError(
                f"held-out sets {other!r} and {name!r}", "names that make two files; a slash becomes a dot there",
                "rename one of them",
            )  # fmt: skip
        plain = name.replace("/", "").replace("-", "").replace("_", "").replace(".", "")
        if not plain.isalnum() or not name[0].isalnum() or name == MAIN_SET:
            raise EctypeError(
                f"held-out set named {name!r}", f"letters, digits, and - _ . / between them, and not {MAIN_SET!r}",
                "rename it",
            )  # fmt: skip
    return sets


def _one(values: Any, source: str, file: Path) -> HeldOutSet:
    found = parse(HeldOutSet, values, source)
    return HeldOutSet.model_validate(rooted(found.model_dump(), file.parent))


def rooted(value: Any, folder: Path) -> Any:
    """`value` with every path in its dictionaries taken relative to `folder`."""
    if isinstance(value, dict):
        return {key: rooted(entry, folder) for key, entry in value.items()}
    return (folder / value).resolve() if isinstance(value, Path) else value


def _read(path: Path) -> dict[str, Any]:
    return read_mapping(path, "held-out sets", "see docs/held-out.md")
