"""Reward models as networks: a backbone with a head that gives a number."""

from oncurve.models.classifiers.classifier import (
    Classifier as Classifier,
    Encoded as Encoded,
    HeadKind as HeadKind,
    OverlongError as OverlongError,
)
from oncurve.models.classifiers.load import (
    PLURALS as PLURALS,
    load_classifier as load_classifier,
    save_classifier as save_classifier,
    with_adapter as with_adapter,
)
from oncurve.models.layers.lengths import batches_by_length as batches_by_length
