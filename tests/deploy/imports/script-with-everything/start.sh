export KUBECONFIG=/etc/upper.conf
export APISERVER_CERT_LOCATION=/etc/vk/tls.crt APISERVER_KEY_LOCATION=/etc/vk/tls.key APISERVER_CA_CERT_LOCATION=/etc/vk/ca.crt
KUBELET_PORT=10350 VKUBELET_POD_IP=192.168.7.2 virtual-node --nodename east --client-kubeconfig /etc/east.conf &
KUBELET_PORT=10351 VKUBELET_POD_IP=192.168.7.2 virtual-node --nodename west --client-kubeconfig /etc/west.conf &
webhook --kubeconfig=/etc/upper.conf --port=9443 --address=192.168.7.2 --tlscert=/etc/wh/tls.crt --tlskey=/etc/wh/tls.key --ignore-selector-keys=clusterID,zone --v=6 &
descheduler --kubeconfig /etc/upper.conf --policy-config-file policy.yaml --descheduling-interval 90s --dry-run --max-pods-to-evict-per-node 5 &
