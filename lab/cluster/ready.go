package cluster

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// requestTimeout is the timeout of one request. A server that is starting may accept a request
// and never answer it. The caller repeats the request.
const requestTimeout = 2 * time.Second

// etcdReady returns nil if etcd serves.
func (s *clusterState) etcdReady(ctx context.Context) error {
	config, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAFile: s.dir.pki("etcd-ca.crt"), CertFile: s.dir.pki("etcd.crt"), KeyFile: s.dir.pki("etcd.key"),
	}})
	if err != nil {
		return fmt.Errorf("load etcd's certificates: %w", err)
	}
	return answers(ctx, s.etcd()+"/health", &http.Transport{TLSClientConfig: config})
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
	return answers(ctx, "http://"+s.registry()+"/v2/", &http.Transport{})
}

// answers returns nil if a server answers a request with 200.
func answers(ctx context.Context, url string, transport *http.Transport) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	transport.DisableKeepAlives = true
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
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
