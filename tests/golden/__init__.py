"""What the audits of `specs.yaml` gave, so that a change of form can be told from a change of numbers."""
