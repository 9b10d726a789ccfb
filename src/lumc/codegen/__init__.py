"""From a plan to code: what launches, where values lie."""
