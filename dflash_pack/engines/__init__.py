"""What each engine will do with given files: pure functions from contents to an EngineMeaning."""
