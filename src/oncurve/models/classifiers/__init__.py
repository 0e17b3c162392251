"""Reward models as networks: a backbone with a head that gives a number."""

from oncurve.models.classifiers.classifier import Classifier, Encoded, HeadKind, OverlongError
from oncurve.models.classifiers.load import PLURALS, load_classifier, save_classifier, with_adapter
from oncurve.models.layers.lengths import batches_by_length
