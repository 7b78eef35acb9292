"""From images, texts and sets of vectors to the inputs of a classifier, for training and prediction alike."""

from .common import Inputs, Preprocessing, make_preprocessing, preprocessing_settings
from .features import FeaturePreprocessing
from .images import ImagePreprocessing
from .sets import SetPreprocessing
from .texts import TextPreprocessing
from .words import WordPreprocessing

__all__ = [
    "FeaturePreprocessing",
    "ImagePreprocessing",
    "Inputs",
    "Preprocessing",
    "SetPreprocessing",
    "TextPreprocessing",
    "WordPreprocessing",
    "make_preprocessing",
    "preprocessing_settings",
]
