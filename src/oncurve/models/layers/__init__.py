"""Parts of a network and what is done to them: blocks, norms, prepacked weights, rotations, checkpointing."""

from oncurve.models.layers.activation_checkpointing import recompute_layers
from oncurve.models.layers.lengths import stated_positions
from oncurve.models.layers.prepacked_weights import prepacked_bytes
from oncurve.models.layers.rotation import reach_of, set_reach
