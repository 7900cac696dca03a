"""Where `bfloat16_pays` was: a ``train.py`` that an earlier ``alignopsd new`` wrote imports it from here."""

from alignopsd_trl.own_task.warm_start.precision import bfloat16_pays

__all__ = ["bfloat16_pays"]
