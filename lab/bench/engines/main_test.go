// Package engines_test measures the cost of finding out whether an object in a cluster matches the
// wanted state. It compares Keelson's differ, gitops-engine (Argo CD) and fluxcd/pkg/ssa (Flux) in
// one process, on the same objects and API server. ../README.md describes what is measured and what
// isn't.
package engines_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/keelson-io/keelson/applier/apiservertest"
)

// patience is the time limit of every wait for the API server.
const patience = time.Minute

// cluster is a real API server and the data that all engines share. It is nil without the API
// server's binaries.
var cluster *apiServer

type apiServer struct {
	config  *rest.Config
	client  client.Client // without a cache
	objects objects
	engines []engine
	// remembering holds the engines that recognise an object as settled and unchanged since the
	// last comparison.
	remembering []engine
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if os.Getenv(apiservertest.EnvAssets) == "" {
		return m.Run(), nil
	}
	log.SetLogger(logr.Discard())
	// Install all CRDs, including the fleet's, before the measurement.
	server, err := apiservertest.Start(os.Getenv(apiservertest.EnvAssets), "testdata")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	config := server.Config
	// No engine waits for a client-side rate limit, as Server.Config has none. Warnings are dropped:
	// they would be printed between the results.
	config.WarningHandler = rest.NoWarnings{}
	s := &apiServer{config: config}
	if s.client, err = client.New(config, client.Options{}); err != nil {
		return 0, err
	}
	if s.objects, err = readObjects(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.createNamespaces(ctx); err != nil {
		return 0, err
	}
	disconnect, err := s.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer disconnect()
	cluster = s
	return m.Run(), nil
}

// connect creates the engines. Data that an engine reads and parses once per cluster, mainly
// schemas, is not measured for any engine.
func (s *apiServer) connect(ctx context.Context) (disconnect func(), err error) {
	keelson, err := newKeelson(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("keelson: %w", err)
	}
	argo, disconnect, err := newGitopsEngine(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("gitops-engine: %w", err)
	}
	s.engines = []engine{
		{"keelson", keelson.settle},
		{"gitops-engine", argo.settleThreeWay},
		{"gitops-engine-structured", argo.settleStructured},
		{"gitops-engine-server-side", argo.settleServerSide},
		{"flux-ssa", newFluxSSA(s).settle},
	}
	s.remembering = []engine{{"keelson", keelson.settleUnchanged}}
	return disconnect, nil
}

func (s *apiServer) createNamespaces(ctx context.Context) error {
	for _, o := range s.objects.all() {
		if o.GetNamespace() == "" {
			continue
		}
		ns := &unstructured.Unstructured{}
		ns.SetAPIVersion("v1")
		ns.SetKind("Namespace")
		ns.SetName(o.GetNamespace())
		if err := s.client.Create(ctx, ns); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("create namespace %s: %w", o.GetNamespace(), err)
		}
	}
	return nil
}

// read returns the live version of a wanted object from the API server.
func (s *apiServer) read(ctx context.Context, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(want.GroupVersionKind())
	err := s.client.Get(ctx, client.ObjectKeyFromObject(want), live)
	return live, err
}

// remove deletes an object and waits until it is gone.
func (s *apiServer) remove(ctx context.Context, o *unstructured.Unstructured) error {
	if err := s.client.Delete(ctx, o); err != nil {
		return client.IgnoreNotFound(err)
	}
	return until(ctx, func(ctx context.Context) (bool, error) {
		_, err := s.read(ctx, o)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

func until(ctx context.Context, done wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, done)
}
