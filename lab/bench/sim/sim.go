// Package sim simulates the API servers of many clusters in one process. Keelson's controller can
// hardly distinguish them from real ones. Discovery and OpenAPI documents are recorded from a real
// API server. Kubernetes' own code merges and completes objects and tracks their owners. Memory per
// cluster holds only what differs between clusters: UIDs, versions, times.
//
// docs/decisions/022 lists what is simulated and what is not.
package sim

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/keelson-io/keelson/lab/pki"
)

// Options configure a simulation.
type Options struct {
	Clusters []string // names
	// Seed determines UIDs, first versions and faults.
	Seed uint64
	Now  func() time.Time
	// Failed is called with errors that do not belong to a request.
	Failed func(error)
}

// Fleet is a set of simulated API servers.
type Fleet struct {
	now         func() time.Time
	failed      func(error)
	paths       *request.RequestInfoFactory
	common      *surface
	bodies      *bodies
	merges      *merges
	definitions *definitions
	players     *players
	servers     map[string]*server
	names       []string
	configs     map[string]*clientcmdapi.Config
	done        chan struct{}
	wg          sync.WaitGroup
}

// Start starts the API servers. Each has its own loopback port and its own certificate authority.
// [Fleet.Stop] ends them.
func Start(ctx context.Context, o Options) (*Fleet, error) {
	common, err := readSurface()
	if err != nil {
		return nil, err
	}
	f := &Fleet{
		now: o.Now, failed: o.Failed, paths: paths(), common: common,
		bodies: &bodies{known: map[[sha256.Size]byte]weak.Pointer[body]{}}, merges: &merges{},
		definitions: &definitions{known: map[string]*definition{}}, players: &players{wake: make(chan struct{}, 1)},
		servers: map[string]*server{}, names: o.Clusters, configs: map[string]*clientcmdapi.Config{}, done: make(chan struct{}),
	}
	f.wg.Go(func() { f.players.run(f.done, f.failed) })
	for i, name := range o.Clusters {
		if f.servers[name] != nil {
			return nil, errors.Join(fmt.Errorf("two clusters are called %s", name), f.Stop())
		}
		if err := f.start(ctx, name, common, mix(o.Seed)+uint64(i)); err != nil { //nolint:gosec // an index
			return nil, errors.Join(fmt.Errorf("cluster %s: %w", name, err), f.Stop())
		}
	}
	return f, nil
}

func (f *Fleet) start(ctx context.Context, name string, common *surface, seed uint64) error {
	s := &server{name: name, fleet: f, store: newStore(f.now, seed), counts: counts{now: f.now, of: map[countKey]*Count{}}}
	s.surface.Store(common)
	if err := s.begin(); err != nil {
		return err
	}
	ca, err := pki.NewAuthority(name, f.now())
	if err != nil {
		return err
	}
	serving, err := ca.Issue(pki.Subject{Name: name, Hosts: []string{"127.0.0.1"}}, f.now())
	if err != nil {
		return err
	}
	client, err := ca.Issue(pki.Subject{Name: "keelson", Groups: []string{"system:masters"}}, f.now())
	if err != nil {
		return err
	}
	certificate, err := tls.X509KeyPair(serving.Cert, serving.Key)
	if err != nil {
		return fmt.Errorf("its certificate: %w", err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ca.Cert)
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0), // broken connections are intended
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
		},
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000},
	}
	s.faults = newFaults(seed, func(l net.Listener) {
		if err := s.http.ServeTLS(l, "", ""); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			f.failed(fmt.Errorf("cluster %s: %w", name, err))
		}
	})
	if err := s.faults.listen(ctx); err != nil {
		return err
	}
	f.servers[name] = s
	kubeconfig, err := pki.Kubeconfig(name, "https://"+s.faults.address, "keelson", ca.Cert, client)
	if err != nil {
		return err
	}
	f.configs[name], err = clientcmd.Load(kubeconfig)
	if err != nil {
		return fmt.Errorf("its kubeconfig: %w", err)
	}
	return nil
}

// builtIn reports whether the API server itself serves this group and version.
func (f *Fleet) builtIn(gv schema.GroupVersion) bool {
	_, ok := f.common.documents[pathOf(gv)]
	return ok
}

// Stop ends all API servers at once.
func (f *Fleet) Stop() error {
	var errs []error
	for _, s := range f.servers {
		errs = append(errs, s.http.Close())
	}
	close(f.done)
	f.wg.Wait()
	return errors.Join(errs...)
}

// Kubeconfig returns a kubeconfig of the named clusters, or of all without names. Each cluster has
// a context with its name. It fails for an unknown name.
func (f *Fleet) Kubeconfig(names ...string) ([]byte, error) {
	if len(names) == 0 {
		names = f.names
	}
	all := clientcmdapi.NewConfig()
	for _, name := range names {
		c := f.configs[name]
		if c == nil {
			return nil, fmt.Errorf("there is no cluster %s", name)
		}
		of := c.Contexts[c.CurrentContext]
		all.Clusters[name], all.AuthInfos[name] = c.Clusters[of.Cluster], c.AuthInfos[of.AuthInfo]
		all.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	all.CurrentContext = names[0]
	data, err := clientcmd.Write(*all)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return data, nil
}

// WriteKubeconfigs writes into folder kubeconfig.yaml with all clusters, and NAME.yaml for each.
func (f *Fleet) WriteKubeconfigs(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("write kubeconfigs: %w", err)
	}
	put := func(file string, names ...string) error {
		data, err := f.Kubeconfig(names...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, file), data, 0o600); err != nil {
			return fmt.Errorf("write kubeconfigs: %w", err)
		}
		return nil
	}
	for _, name := range f.names {
		if err := put(name+".yaml", name); err != nil {
			return err
		}
	}
	return put("kubeconfig.yaml")
}

// Status describes one cluster.
type Status struct {
	Name    string         `json:"name"`
	Server  string         `json:"server"`
	Faults  Faults         `json:"faults"`
	Version uint64         `json:"version"` // of the last write
	Objects map[string]int `json:"objects"` // by resource
	Watches int            `json:"watches"` // number of open watches
	Counts  []Count        `json:"counts"`
}

// Statuses returns the status of the named clusters, or of all without names, in that order. It
// fails for an unknown name.
func (f *Fleet) Statuses(names ...string) ([]Status, error) {
	if len(names) == 0 {
		names = slices.Clone(f.names)
	}
	out := make([]Status, 0, len(names))
	for _, name := range names {
		s := f.servers[name]
		if s == nil {
			return nil, fmt.Errorf("there is no cluster %s", name)
		}
		one := Status{Name: name, Server: "https://" + s.faults.address, Faults: s.faults.get(), Counts: s.counts.all()}
		one.Objects, one.Watches = s.store.counts()
		_, one.Version = s.store.list(namespaces.GroupResource())
		out = append(out, one)
	}
	return out, nil
}

// Set replaces the faults of a cluster. The zero Faults end all faults.
func (f *Fleet) Set(ctx context.Context, name string, faults Faults) error {
	s := f.servers[name]
	if s == nil {
		return fmt.Errorf("there is no cluster %s", name)
	}
	if err := s.faults.set(context.WithoutCancel(ctx), faults); err != nil {
		return fmt.Errorf("cluster %s: %w", name, err)
	}
	return nil
}

// CutWatches ends all watches of a cluster.
func (f *Fleet) CutWatches(name string) error {
	s := f.servers[name]
	if s == nil {
		return fmt.Errorf("there is no cluster %s", name)
	}
	s.faults.cutWatches()
	return nil
}
