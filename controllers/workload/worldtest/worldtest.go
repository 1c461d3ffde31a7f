// Package worldtest is the test environment of the controllers of workloads: a namespace of a
// real API server, the manager of production, and a simulated kubelet.
package worldtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/kubelettest"
)

// World is a namespace with a controller and a kubelet of its own.
type World struct {
	testing.TB
	// Client reads and writes the API server directly, without a cache.
	Client    client.Client
	Pods      kubernetes.Interface
	Namespace string
	Kubelet   *kubelettest.Kubelet

	server *rest.Config
	now    func() time.Time
	add    Add
	stop   func()
}

// Add adds the controller of a workload to a manager.
type Add func(context.Context, ctrl.Manager, base.Options) error

// New returns a world, whose namespace is named after the test. Its controller is added by add,
// uses now as its clock, and stops with the test.
func New(t testing.TB, server *rest.Config, now func() time.Time, add Add) *World {
	t.Helper()
	apiservertest.Need(t, server)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(server, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := kubernetes.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	w := &World{TB: t, Client: c, Pods: pods, server: server, now: now, add: add, Namespace: strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(t.Name(), "Test"), "/", "-"))}
	w.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace}})
	w.Make(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: w.Namespace}})
	w.start()
	t.Cleanup(func() { w.stop() })
	w.Kubelet = kubelettest.Start(t, pods, w.Namespace)
	return w
}

// Make creates an object. It fails the test on an error.
func (w *World) Make(o client.Object) {
	w.Helper()
	if err := w.Client.Create(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

// Restart stops the controller, and starts another one after a function has run.
func (w *World) Restart(between func()) {
	w.Helper()
	w.stop()
	between()
	w.start()
}

func (w *World) start() {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	m, err := base.NewManager(ctx, w.server, w.Namespace, ctrl.Options{Logger: logr.Discard()})
	if err != nil {
		cancel()
		w.Fatal(err)
	}
	if err = w.add(ctx, m, base.Options{Workers: 2, InPlace: inplace.Options{Resize: true}, Now: w.now}); err != nil {
		w.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := m.Start(ctx); err != nil {
			w.Error(err)
		}
	}()
	w.stop = func() {
		cancel()
		<-ended
	}
}
