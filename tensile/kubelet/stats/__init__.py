"""Usage statistics of virtual nodes and their pods, cpu and memory, in the formats of a kubelet.

A lower cluster's metrics API reports rates, but readers of a kubelet expect counters. `usage` turns samples into
counters per upper pod, and `collector` fetches the samples on request and renders the counters.
"""
