"""The transforms that ship, each family in a module; `framework.config.transforms` names them."""
