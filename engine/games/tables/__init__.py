"""Games about synthetic tables: which rows was a generator fitted on."""
