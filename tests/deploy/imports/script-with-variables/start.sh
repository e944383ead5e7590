#!/bin/sh
# starts the virtual node; it's for the second cluster
IP=10.20.0.7
export KUBELET_PORT=10450 APISERVER_CERT_LOCATION=/etc/vk/serving.crt
export APISERVER_KEY_LOCATION=/etc/vk/serving.key
cd /opt/vk && nohup ./virtual-node --nodename $IP --provider k8s --kube-api-qps 500 \
  --kube-api-burst 1000 --kubeconfig /root/upper.conf --client-kubeconfig ${HOME}/lower.conf \
  --klog.v 4 --log-level debug 2>&1 > node.log &
echo "virtual-node is up"
