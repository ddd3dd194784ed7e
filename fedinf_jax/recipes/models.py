"""The models that recipes name."""

from fedinf_jax import models


def _logreg(config, num_features, num_classes):
  return models.logreg(
    num_features, num_classes, config.logit_activation or None
  )


def _cnn(config, num_features, num_classes):
  del num_features  # It takes images of one size.
  return models.cnn(
    num_classes,
    widths=tuple(config.widths),
    dense=config.dense,
    activation=config.activation or None,
    pool=config.pool,
  )


KINDS = {"logreg": _logreg, "cnn": _cnn}
