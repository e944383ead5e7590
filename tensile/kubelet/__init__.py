"""What makes a lower cluster look like one node: its pods, their status, its capacity, its kubelet API."""
