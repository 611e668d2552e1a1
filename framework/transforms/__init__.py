"""The transforms that ship, each family in a module; `framework.config.transform_registry` names them."""
