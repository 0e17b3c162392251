"""Components: settings that build objects, and what each component states of itself."""

from oncurve.components.capabilities import (
    Equation as Equation,
    Impossible,
    Inert,
    check_of,
    check_per_token,
    described,
    lacking,
    rules_of,
    stated,
    uncallable,
    unflagged,
)
from oncurve.components.spec import (
    Component as Component,
    as_written,
    build,
    component_class,
    kind_of,
    leaf_types,
    misstated,
    nested_in,
    refuse_extremes_in,
    validated,
)
