package apiservertest

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Watch follows objects from the resourceVersion of a list on, until the test ends or the watch is
// stopped. An API server ends the watch of a slow reader, and on a busy machine every reader is
// slow. The watch then restarts where it ended, and no event is lost.
func Watch(t testing.TB, from string, begin func(context.Context, metav1.ListOptions) (watch.Interface, error)) watch.Interface {
	t.Helper()
	w, err := watchtools.NewRetryWatcherWithContext(t.Context(), from, &cache.ListWatch{WatchFuncWithContext: begin})
	if err != nil {
		t.Fatal(err)
	}
	return w
}
