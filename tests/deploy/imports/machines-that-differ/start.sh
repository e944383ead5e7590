APISERVER_CERT_LOCATION=/etc/a.crt APISERVER_KEY_LOCATION=/etc/a.key VKUBELET_POD_IP=10.0.0.1 \
  virtual-node --nodename=a --kubeconfig=/etc/upper.conf --client-kubeconfig=/etc/a.conf --kube-api-qps=50 --kube-api-burst=2000 --enable-controllers=ServiceControllers
APISERVER_CERT_LOCATION=/etc/b.crt APISERVER_KEY_LOCATION=/etc/b.key VKUBELET_POD_IP=10.0.0.2 \
  virtual-node --nodename=b --kubeconfig=/etc/upper.conf --client-kubeconfig=/etc/b.conf --kube-api-qps=80 --kube-api-burst=20 --client-verify-ca=/etc/ca.crt --enable-serviceaccount=false
