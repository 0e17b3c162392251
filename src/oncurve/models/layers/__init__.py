"""Parts of a network and what is done to them: blocks, norms, prepacked weights, rotations, checkpointing."""

from oncurve.models.layers.activation_checkpointing import recompute_layers as recompute_layers
from oncurve.models.layers.alignment import aligned as aligned
from oncurve.models.layers.blocks import (
    Block as Block,
    Shared as Shared,
    blocks_of as blocks_of,
    replace_blocks as replace_blocks,
)
from oncurve.models.layers.joined_weights import Joined as Joined, join as join
from oncurve.models.layers.lengths import (
    check_longest as check_longest,
    longest_row_of as longest_row_of,
    positions_of as positions_of,
    stated_positions as stated_positions,
)
from oncurve.models.layers.prepacked_weights import (
    PrepackedWeights as PrepackedWeights,
    prepack as prepack,
    prepacked_bytes as prepacked_bytes,
)
from oncurve.models.layers.rms_norm import (
    keeps_a_wide_residual as keeps_a_wide_residual,
    narrow_positions as narrow_positions,
    replace_norms as replace_norms,
)
from oncurve.models.layers.rotation import (
    hold_rotations as hold_rotations,
    reach_of as reach_of,
    set_reach as set_reach,
)
from oncurve.models.layers.straight import (
    StraightBody as StraightBody,
    hooked as hooked,
    is_straight as is_straight,
)
