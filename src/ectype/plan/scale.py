"""The same work for each device on another count of them."""

from ectype.errors import EctypeError
from ectype.recipe.spec import Recipe


def with_windows_of(recipe: Recipe, devices: int, wanted: int) -> Recipe:
    """The recipe with the windows a step that give each of `wanted` devices what each of `devices` had.

    Raises:
        EctypeError: that is no whole number of windows.
    """
    windows, left = divmod(recipe.data.global_batch_windows * wanted, devices)
    if left or not windows:
        raise EctypeError(
            f"{recipe.data.global_batch_windows} windows on {devices} devices, wanted on {wanted}",
            "a whole number of windows a step", "choose counts of devices that divide",
        )  # fmt: skip
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"global_batch_windows": windows})})
