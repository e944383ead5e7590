"""Every kind of bad topology file."""

import bad_fits
import bad_types
import bad_values
import bad_words
import bad_yaml

ALL = (*bad_yaml.ALL, *bad_types.ALL, *bad_values.ALL, *bad_words.ALL, *bad_fits.ALL)
