"""A landmark whose reference is a stored record of what its weights said, as those weights are not at hand.

Losses and first choices are as the weights gave them. Of the KL only bounds are known, unless the record holds every
id.
"""

from collections.abc import Mapping
from pathlib import Path

from ectype.errors import EctypeError
from ectype.evaluate.engine import Settings
from ectype.evaluate.held_out import HeldOutText
from ectype.evaluate.stored_reference import StoredFacts, holds_text, is_stored_reference, read_facts
from ectype.recipe.held_out_sets import MAIN_SET
from ectype.recipe.reference import LandmarkWeights


def stored_facts(reference: LandmarkWeights) -> StoredFacts | None:
    """What the landmark's stored reference says of itself; None where the landmark has weights.

    Raises:
        EctypeError: the file can't be read.
    """
    return read_facts(reference.weights) if is_stored_reference(reference.weights) else None


def top_ids_of(reference: LandmarkWeights) -> int | None:
    """Ids of each token that the landmark's stored reference holds; None where the landmark has weights."""
    facts = stored_facts(reference)
    return None if facts is None else facts.top_ids


def measurable(texts: Mapping[str, HeldOutText], reference: LandmarkWeights) -> dict[str, HeldOutText]:
    """The texts that a landmark can be measured on: all, or the one that its stored reference was made on.

    Raises:
        EctypeError: that is another text than the one that a verdict rests on.
    """
    facts = stored_facts(reference)
    if facts is None:
        return dict(texts)
    if MAIN_SET in texts and not holds_text(facts, texts[MAIN_SET]):
        raise EctypeError(
            f"stored reference {reference.weights} is of another text, cut or tokenizer",
            f"that of the reference's `held_out`: {', '.join(texts[MAIN_SET].sha256)}, in windows of "
            f"{texts[MAIN_SET].cut.window_tokens} tokens",
            "make it where the weights are: `ectype evaluate WEIGHTS --held-out SET --tokenizer FILE --store FILE.npz`",
        )
    return {name: text for name, text in texts.items() if holds_text(facts, text)}


def require_facts(facts: StoredFacts, path: Path, step: int, settings: Settings) -> None:
    """Refuse a record that says another thing than is asked for.

    Raises:
        EctypeError: it is of another step, or was computed in another element type.
    """
    if facts.step not in (None, step):
        raise EctypeError(f"{path} is of step {facts.step}", f"step {step}", "correct `landmarks` in the reference")
    if facts.compute_dtype != settings.compute_dtype:
        raise EctypeError(
            f"{path} was computed in {facts.compute_dtype}, and ours would be in {settings.compute_dtype}",
            "one element type on both sides", f"evaluate with --compute {facts.compute_dtype}",
        )  # fmt: skip
