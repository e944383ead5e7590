nohup ./multi-scheduler --v=5 --config=./config.json --authentication-kubeconfig=/etc/kubernetes/scheduler.conf --bind-address=127.0.0.1 --kubeconfig=/etc/kubernetes/scheduler.conf --leader-elect=true > multi.log 2>&1 &
virtual-node --nodename=north --client-kubeconfig=/etc/north.conf --kubeconfig=/etc/upper.conf
virtual-node --nodename=south --client-kubeconfig=/etc/south.conf --kubeconfig=/etc/other.conf
