"""The Node object of a lower cluster: its capacity, status and conditions, and the Lease that keeps it alive."""
