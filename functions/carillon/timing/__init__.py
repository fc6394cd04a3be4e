"""When: rules, the capacity curve, other campaigns' capacity, and a slot for every e-mail."""
