package renderer_test

import (
	"path/filepath"
	"testing"

	"github.com/keelson-io/keelson/renderer"
)

// BenchmarkRender renders public charts in this process and in workers, as
// many at once as there are processors.
func BenchmarkRender(b *testing.B) {
	charts, err := filepath.Glob(filepath.Join("..", "..", "shared", "charts", "*", "Chart.yaml"))
	if err != nil || len(charts) == 0 {
		b.Skip("no public charts here")
	}
	for _, file := range charts {
		dir := filepath.Dir(file)
		r := renderer.Request{Version: readVersion(b, dir, filepath.Base(dir)), Capabilities: renderer.DefaultCapabilities()}
		for name, engine := range map[string]renderer.Renderer{
			"engine": renderer.New(),
			"pool":   newPool(b, renderer.PoolOptions{}),
		} {
			b.Run(filepath.Base(dir)+"/"+name, func(b *testing.B) {
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
