"""Facts about pods that rules, kubelet and policy share: references, requests, scheduling constraints, indexes."""
