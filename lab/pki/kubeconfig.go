package pki

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig returns a kubeconfig file with embedded certificates and key. Its only
// context is named after the cluster.
func Kubeconfig(cluster, server, user string, ca []byte, pair Pair) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	config.Contexts[cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: user}
	config.CurrentContext = cluster
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("write the kubeconfig of %s for %s: %w", cluster, user, err)
	}
	return data, nil
}
