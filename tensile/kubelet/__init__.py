"""What makes lower clusters look like nodes: node objects, pods and their status, the kubelet API, usage statistics."""
