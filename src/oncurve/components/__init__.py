"""Components: settings that build objects, and what each component states of itself."""

from oncurve.components.capabilities import (
    Equation as Equation,
    Impossible as Impossible,
    Inert as Inert,
    check_of as check_of,
    check_per_token as check_per_token,
    described as described,
    lacking as lacking,
    rules_of as rules_of,
    stated as stated,
    unflagged as unflagged,
)
from oncurve.components.spec import (
    Component as Component,
    as_written as as_written,
    build as build,
    component_class as component_class,
    kind_of as kind_of,
    leaf_types as leaf_types,
    misstated as misstated,
    nested_in as nested_in,
    refuse_extremes_in as refuse_extremes_in,
    validated as validated,
)
