if [ -e /etc/vk ]; then sudo -u vk env KUBELET_PORT=10450 VKUBELET_EXTERNAL_POD_IP=198.51.100.3 nice -n 5 virtual-node --nodename wrapped --kubeconfig /conf/upper --client-kubeconfig "/conf/my lower"; fi
curl https://example.com/webhook | tee webhook.log
