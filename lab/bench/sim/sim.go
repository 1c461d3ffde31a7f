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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/lru"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
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
	kubeconfigs map[string][]byte // by cluster
	done        chan struct{}
	wg          sync.WaitGroup
}

// Start starts the API servers. Each has its own loopback port and its own certificate authority.
// [Fleet.Stop] ends them.
func Start(ctx context.Context, o Options) (*Fleet, error) {
	common, err := must.TryGet(readSurface)
	if err != nil {
		return nil, err
	}
	f := &Fleet{
		now: o.Now, failed: o.Failed, common: common,
		paths:  &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")},
		bodies: &bodies{known: map[[sha256.Size]byte]weak.Pointer[body]{}}, merges: &merges{lru.New(remembered)},
		definitions: &definitions{known: map[string]*definition{}}, players: &players{wake: make(chan struct{}, 1)},
		servers: map[string]*server{}, names: o.Clusters, kubeconfigs: map[string][]byte{}, done: make(chan struct{}),
	}
	f.wg.Go(func() { f.players.run(f.done, f.failed) })
	for i, name := range o.Clusters {
		if err := must.Try(func() { f.start(ctx, name, mix(o.Seed)+uint64(i)) }); err != nil { //nolint:gosec // an index
			return nil, errors.Join(fmt.Errorf("cluster %s: %w", name, err), f.Stop())
		}
	}
	return f, nil
}

// start starts an API server. It is a step of package must.
func (f *Fleet) start(ctx context.Context, name string, seed uint64) {
	if f.servers[name] != nil {
		must.Failf("two clusters have this name")
	}
	s := &server{name: name, fleet: f, store: newStore(f.now, seed), counts: counts{now: f.now, of: map[Count]*Count{}}}
	s.surface.Store(f.common)
	must.Do(s.begin())
	ca := must.Get(pki.NewAuthority(name, f.now()))
	serving := must.Get(ca.Issue(pki.Subject{Name: name, Hosts: []string{"127.0.0.1"}}, f.now()))
	client := must.Get(ca.Issue(pki.Subject{Name: "keelson", Groups: []string{"system:masters"}}, f.now()))
	certificate := must.Get(tls.X509KeyPair(serving.Cert, serving.Key))
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
	must.Do(s.faults.listen(ctx))
	f.servers[name] = s
	f.kubeconfigs[name] = must.Get(pki.Kubeconfig(name, "https://"+s.faults.address, "keelson", ca.Cert, client))
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
		if err := s.http.Close(); !errors.Is(err, net.ErrClosed) { // the listener of a server that refused is closed already
			errs = append(errs, err)
		}
	}
	close(f.done)
	f.wg.Wait()
	return errors.Join(errs...)
}

// WriteKubeconfigs writes into folder kubeconfig.yaml with all clusters, and NAME.yaml for each.
// Each cluster has a context with its name.
func (f *Fleet) WriteKubeconfigs(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("write kubeconfigs: %w", err)
	}
	for name, data := range f.kubeconfigs {
		if err := os.WriteFile(filepath.Join(folder, name+".yaml"), data, 0o600); err != nil {
			return fmt.Errorf("write kubeconfigs: %w", err)
		}
	}
	return harness.WriteKubeconfig(filepath.Join(folder, "kubeconfig.yaml"), f.names[0], f.kubeconfigs)
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
		s, err := f.server(name)
		if err != nil {
			return nil, err
		}
		one := Status{Name: name, Server: "https://" + s.faults.address, Faults: s.faults.get(), Counts: s.counts.all()}
		one.Objects, one.Watches = s.store.counts()
		_, one.Version = s.store.list(namespaces.GroupResource())
		out = append(out, one)
	}
	return out, nil
}

// server returns the server of a cluster.
func (f *Fleet) server(name string) (*server, error) {
	if s := f.servers[name]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("there is no cluster %s", name)
}

// Set replaces the faults of a cluster. The zero Faults end all faults.
func (f *Fleet) Set(ctx context.Context, name string, faults Faults) error {
	s, err := f.server(name)
	if err != nil {
		return err
	}
	if err := s.faults.set(context.WithoutCancel(ctx), faults); err != nil {
		return fmt.Errorf("cluster %s: %w", name, err)
	}
	return nil
}

// CutWatches ends all watches of a cluster.
func (f *Fleet) CutWatches(name string) error {
	s, err := f.server(name)
	if err == nil {
		s.faults.cutWatches()
	}
	return err
}
