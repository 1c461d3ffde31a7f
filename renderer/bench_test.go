package renderer_test

import (
	"path/filepath"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"

	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/charttest"
)

// BenchmarkRender renders the chart that helm create makes and the public ones, in this
// process and in workers, as many at once as there are processors.
func BenchmarkRender(b *testing.B) {
	made, err := chartutil.Create("starter", b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	for _, dir := range append(charttest.Public(b), made) {
		name := filepath.Base(dir)
		r := renderer.Request{Version: readVersion(b, dir, name), Capabilities: renderer.DefaultCapabilities()}
		for by, engine := range map[string]renderer.Renderer{
			"engine": renderer.New(),
			"pool":   newPool(b, renderer.PoolOptions{}),
		} {
			b.Run(name+"/"+by, func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if _, err := engine.Render(b.Context(), r); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}
