"""One module a format: detect(), read() to a Drafter and, where it has an output form, write()."""
