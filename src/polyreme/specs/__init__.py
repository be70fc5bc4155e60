"""Every file that polyreme reads or writes, as frozen dataclasses; `io` is the only place that (de)serialises them."""
