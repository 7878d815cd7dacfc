"""What a recipe and a placement would cost on a TPU slice, from the TPU compiler itself, without a TPU."""
