"""One's own data: images in folders by class, tables of texts, files of arrays; read, checked and split."""

from .arrays import read_arrays
from .images import image_size, list_images
from .labelled import Labelled, check_classes, split_samples
from .tables import find_columns, read_table, read_texts

__all__ = [
    "Labelled",
    "check_classes",
    "find_columns",
    "image_size",
    "list_images",
    "read_arrays",
    "read_table",
    "read_texts",
    "split_samples",
]
