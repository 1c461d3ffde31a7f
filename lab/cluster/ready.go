package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// requestTimeout is the timeout of one request. A server that is starting may accept a request
// and never answer it. The caller repeats the request.
const requestTimeout = 2 * time.Second

// etcdReady returns nil if etcd serves.
func (s *clusterState) etcdReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pair, err := tls.LoadX509KeyPair(s.dir.pki("etcd.crt"), s.dir.pki("etcd.key"))
	if err != nil {
		return fmt.Errorf("load etcd's certificate: %w", err)
	}
	ca, err := os.ReadFile(s.dir.pki("etcd-ca.crt"))
	if err != nil {
		return fmt.Errorf("load etcd's authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return errors.New("etcd's authority is no certificate")
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}},
		DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.etcd()+"/health", nil)
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answers %s", response.Status)
	}
	return nil
}

// apiserverReady returns nil if the API server is ready.
func (s *clusterState) apiserverReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client, err := s.client()
	if err != nil {
		return err
	}
	if err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	return nil
}

// registryReady returns nil if the registry serves.
func (s *clusterState) registryReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.registry()+"/v2/", nil)
	if err != nil {
		return fmt.Errorf("ask the registry: %w", err)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return fmt.Errorf("ask the registry: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the registry answers %s", response.Status)
	}
	return nil
}

// client returns a client with the administrator's rights.
func (s *clusterState) client() (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.dir.kubeconfig(Admin))
	if err != nil {
		return nil, fmt.Errorf("%s: read the administrator's kubeconfig: %w", s.Name, err)
	}
	config.UserAgent = "keelson-lab"
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("%s: make a client: %w", s.Name, err)
	}
	return client, nil
}
