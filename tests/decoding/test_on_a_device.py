"""Decoding on a device that isn't the CPU: no tensor of the host among the device's, the same text, and few waits."""

from collections.abc import Iterator

from tests.generators import PROPOSERS, VERIFIERS, names_of

MASKS = names_of("masks")
CHAIN, TREE, LAYERS = "draft_model", "draft_model:width=2", "draft_model:layers=1"
REGISTERED = [*names_of("proposers"), TREE, LAYERS]
WITH_OPTIONS = [name for name in PROPOSERS if name not in REGISTERED]
TRAINING_FREE = [name for name in names_of("proposers") if name != CHAIN]
LONG, SHORT = "one prompt", "a ragged batch"
NUM_TOKENS = 5


def cases() -> Iterator[tuple[str, str, str, str]]:
    """Yield strategies, rules, masks, and which of two texts is drawn, the other greedy.

    Among them are all pairs of a registered strategy, a rule, a mask and a temperature, and each strategy with other
    options once.
    """
    for i, name in enumerate(REGISTERED):
        for j, rule in enumerate(VERIFIERS):
            yield name, rule, MASKS[(i + j) % len(MASKS)], (LONG, SHORT)[(i + j) % 2]
    for i, name in enumerate(WITH_OPTIONS):
        rule, mask = i % len(VERIFIERS), i // len(VERIFIERS) % len(MASKS)
        yield name, VERIFIERS[rule], MASKS[mask], (LONG, SHORT)[i % 2]
