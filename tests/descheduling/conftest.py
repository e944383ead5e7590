"""Where tests of the descheduler find what they share."""
