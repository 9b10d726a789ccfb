"""Sound as features, and what a model of speech hears in them."""
